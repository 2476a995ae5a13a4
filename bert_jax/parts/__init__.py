"""Parts by the names that keys give: files of this package, and users' own files, which run if they are trusted."""
