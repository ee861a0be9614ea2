"""What a module does to gradients by means of autograd: functions of its own, and hooks."""
