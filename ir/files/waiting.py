"""How long a process waits for another one, in seconds.

Only the time that a run takes to begin, to save and to end depends on these numbers.
"""

from typing import Final

LOOK: Final = 0.05
"""Between two looks at files, or at what the system has, that other processes change.

Half of it costs twice the system calls, 40 a second; twice as much delays what waits by 0.1 s.
"""

WATCH: Final = 0.5
"""Between two looks whether a run ends early, while something else is waited for, which wakes.

Half of it costs four looks a second; twice as much delays the end of a failed run by a second.
"""

RETRY: Final = 0.2
"""Between two tries to reach another process, which may not have begun yet.

Half of it doubles the tries; twice as much delays the start of a run by up to 0.4 s.
"""

ANSWER: Final = 10.0
"""For another process to say who it is at the other end of a connection, to read what was written
to its pipe, or to let go of a folder, which takes two seconds where it writes a plan.

A network's longest way takes one second. Half would do; twice as much lets strangers hold
connections, and processes that hang delay an error, for longer.
"""

END: Final = 5.0
"""For a process to end that has nothing left to do, or that is killed: it takes some 0.1 s.

Half would do; twice as much only delays the end of a run in which one hangs.
"""

SAVING: Final = 30.0
"""For a process that is asked to end to save what it has: batch systems give as long.

Half of it cuts the saving of large states off; twice as much is more than those systems wait.
"""

ARRIVAL: Final = 300.0
"""For a process of a run to arrive where others wait for it: its machine may not be up yet, or it
comes back after its end, or one of its steps takes long.

Half may be short for that; twice as much only delays the message.
"""
