"""Training: losses, optimizers, schedules, and the loop that runs them."""
