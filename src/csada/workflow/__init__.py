"""What is run: small studies that take settings and return values, ready to be shown."""
