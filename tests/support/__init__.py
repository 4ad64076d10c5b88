"""What tests share: small models, data, runs and services; a browser; processes that end."""
