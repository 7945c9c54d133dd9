"""Methods in place in a loaded model of transformers, which stays what it is."""
