"""Plain text of MediaWiki markup."""

import pytest

pytest.importorskip("mwparserfromhell", reason="needs the extra wikipedia")

from bert_jax.corpora.wikitext import plain  # noqa: E402


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''[[Page|shown]]'' and [[Other]]s.", "Bold and shown and Others."),
        ("A{{cite|x={{y}}}} b<ref name=a>{{c}} gone</ref>, c<ref name=a/>.", "A b, c."),
        (
            "[[File:X.jpg|thumb|A [[link]] in it]]Text.[[Category:Y]] [[fr:Z]] [[:Category:Shown]]",
            "Text. Category:Shown",
        ),
        ("{| class=x\n! head\n|-\n| [[cell]] || two\n|}\nAfter.", "After."),
        ("Before ({{IPA|x}}) and (; from Greek) it.", "Before and (from Greek) it."),
        ("One&nbsp;two&ndash;three<!-- no -->.__NOTOC__", "One two–three."),
        ("[http://x.org The site] and [http://y.org] end.", "The site and end."),
        ("First.\nSecond<br/>third.\n\nFourth.", "First.\nSecond\nthird.\nFourth."),
        ("<math>x</math>H<sub>2</sub>O <span>is</span> <nowiki>[[wet]]</nowiki>", "H2O is [[wet]]"),
        ("<gallery>\nA.jpg|b\n</gallery><div>In.</div>Out.", "In.\nOut."),
    ],
)
def test_what_a_reader_sees_is_kept(markup, text):
    assert plain(markup) == text


def test_headings_and_lists_are_kept_on_request():
    markup = "Top.\n== Head ==\n* one\n# two\n: three\n; four : five\nEnd."
    assert plain(markup) == "Top.\nEnd."
    assert plain(markup, headings="keep").split("\n") == ["Top.", "Head", "End."]
    assert plain(markup, lists="keep").split("\n") == ["Top.", "one", "two", "three", "four five", "End."]


def test_names_of_a_wiki_for_files_and_categories():
    markup = "[[Datei:X.jpg|mini|Bild]]Text.[[Kategorie:Y]]"
    assert plain(markup, ("Datei", "Kategorie")) == "Text."
    assert plain(markup) != "Text."
