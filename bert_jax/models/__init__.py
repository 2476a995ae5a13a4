"""Flax modules: embeddings, attention, encoder, heads, and the table of sizes. Knows no data, loss or mesh."""
