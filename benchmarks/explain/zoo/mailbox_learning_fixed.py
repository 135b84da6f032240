"""`mailbox_learning.py` waiting for each letter instead of napping."""

import mailbox_learning as mailbox


def look(box):
    return box.get()


mailbox.look = look

if __name__ == "__main__":
    mailbox.main()
