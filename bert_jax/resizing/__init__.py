"""Models of another size made of a trained model: fewer pieces, fewer layers and units, or more layers and units."""
