"""Language models as users meet them: prompts in, texts out, and where models come from."""
