"""Command line of Surehand: one module for each verb, or for verbs that belong together."""

if __name__ != "surehand.cli":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.cli here: import that")
