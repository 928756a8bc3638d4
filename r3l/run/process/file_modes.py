"""Makes new files readable only by their owner, unless R3L_UMASK is set.

Groups, logs and configurations hold prompts, answers and sometimes credentials. With
`R3L_UMASK=022` every user of the machine can read what a command writes; with `R3L_UMASK=027` only
the owner's group can.
"""

import os

from r3l.errors import UserError

VARIABLE = "R3L_UMASK"
PRIVATE = 0o077


def set_file_modes() -> None:
    """Sets the umask of this process and its children. Raises UserError if R3L_UMASK is not an
    octal number from 000 to 077."""
    text = os.environ.get(VARIABLE, "")
    try:
        mask = int(text, 8) if text else PRIVATE
    except ValueError:
        mask = -1
    if not 0 <= mask <= PRIVATE:  # a mask that takes the user's own rights would end the run
        raise UserError(f"{VARIABLE}={text!r:.40}: must be octal, from 000 to 077, such as 022")
    os.umask(mask)
