from hypothesis import settings

# The same examples in every run, and no limit of time, so that a slow machine fails no test.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
