"""Language models: text to tokens, training through Hugging Face's Trainer, bits per byte at any context length."""
