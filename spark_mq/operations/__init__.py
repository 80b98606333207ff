"""Create, lease, settle and trace: what is done to one queue or group."""
