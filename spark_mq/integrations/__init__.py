"""Connect queues to other products. Nothing in the core imports a module of this package."""
