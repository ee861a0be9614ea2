"""Who runs the tasks of a search: this process, others of this machine, or other machines."""
