"""Requirements and tests of others: which of our tests prove them, as rows of YAML files."""
