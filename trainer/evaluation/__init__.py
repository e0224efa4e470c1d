"""When and where the global model is evaluated and saved."""
