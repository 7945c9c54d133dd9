"""GGUF files: header, description of the model, tensors and tokenizer."""
