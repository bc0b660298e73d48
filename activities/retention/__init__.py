"""What hides and deletes: a round over a tenant's runs, its rows and its files."""
