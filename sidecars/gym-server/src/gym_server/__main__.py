"""`python -m gym_server` is gym-server, `python -m gym_server driver -- …` the driver."""

import sys

from gym_server import entry

if __name__ == "__main__":
    if sys.argv[1:2] == ["driver"]:
        del sys.argv[1]
        entry.driver()
    entry.gym_server()
