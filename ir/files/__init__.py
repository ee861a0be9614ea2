"""Files, and how long to wait for them.

`reading` those of others, `writing` one that is whole or not there, `folders` of them; `waiting`
has the seconds that a process waits for another one.
"""
