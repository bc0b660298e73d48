"""What tenants may use, and have used."""
