"""`model.generate(..., custom_generate=bestk.generate)`."""
