"""strace, with which power cuts are simulated."""

import shutil
import subprocess


def install_strace() -> None:
    """Installs Debian's package if there is no strace."""
    if shutil.which("strace") is None:
        subprocess.run(["apt-get", "install", "--yes", "strace"], check=True)
