"""Pure room: deterministic workflow code, contracts and plans. No clock, env, network or SQL."""
