"""Tools: the user's API, and what is loaded and known of them."""
