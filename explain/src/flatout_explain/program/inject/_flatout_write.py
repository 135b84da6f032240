"""Writes what the probe sees in one process to a file of the folder, as lines of JSON."""

from _flatout_own import __builtins__, json_of, os, time  # noqa: F401


class Writer:
    """The rows and samples that are not written yet, and the file to which they go."""

    def __init__(self, folder):
        self.folder = folder
        self.file = None
        self.lines, self.samples = [], []

    def is_asked_to(self, what):
        """Return whether `explain` has put a file of this name into the folder."""
        return os.access("%s/%s" % (self.folder, what), os.F_OK)

    def line(self, row):
        """Return add a row."""
        self.lines.append(json_of(row))

    def flush(self):
        """Write all rows and samples; return whether that succeeded."""
        if self.samples:
            samples, self.samples = self.samples, []
            self.line({"k": "samples", "d": samples})
        lines, self.lines = self.lines, []
        if not lines:
            return True
        if self.file is None:
            self.file = "%d-%d.jsonl" % (os.getpid(), int(time.monotonic() * 1e6))
        return self.append(self.file, ("\n".join(lines) + "\n").encode("utf-8", "replace"))

    def append(self, name, data):
        """Return append to a file of the folder; return whether that succeeded."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = os.open("%s/%s" % (self.folder, name), flags, 0o600)
            view = memoryview(data)
            try:
                while len(view):
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True
