"""Where a tenant's runs are, once there is more than one cell; and how it moves to another one."""
