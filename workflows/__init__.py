"""Pure room: deterministic workflow code, contracts and plans. No clock, env, network or SQL."""

if __name__ != "surehand.workflows":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.workflows here: import that")
