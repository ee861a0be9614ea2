"""How long a process waits for another one, in seconds.

Only the time that a run takes to begin, to save and to end depends on these numbers.
"""

from typing import Final

LOOK: Final = 0.05
"""Between two looks at files, or at what the system has, that other processes change.

Half of it costs twice the system calls, 40 a second; twice as much delays what waits by 0.1 s.
"""

RETRY: Final = 0.2
"""Between two tries to reach another process, which may not have begun yet.

Half of it doubles the tries; twice as much delays the start of a run by up to 0.4 s.
"""

ANSWER: Final = 10.0
"""For the other end of a connection to say who it is: a network's longest way takes one second.

Half would do; twice as much lets strangers hold connections for longer.
"""

ARRIVAL: Final = 300.0
"""For all processes of a run to arrive, on machines that may not be up yet.

Half may be short for that; twice as much only delays the message.
"""
