"""JupyterHub for one class on one machine; book/start/hub.md leads through it.

    jupyterhub -f examples/hub/jupyterhub_config.py              # as the service starts it, as root
    HUB_TRIAL=1 HUB_FOLDER=/tmp/hub jupyterhub -f examples/hub/jupyterhub_config.py

A trial needs no rights and no accounts. All its servers run as you, and anybody on this machine can log in as anybody.
"""

import os
import re
import sys
from pathlib import Path

c = get_config()  # noqa: F821 (JupyterHub defines it)

HERE = Path(__file__).resolve().parent
TRIAL = "HUB_TRIAL" in os.environ

#: The exchange, the list of students, and what the hub itself keeps.
FOLDER = Path(os.environ.get("HUB_FOLDER", "/srv/class"))
#: The instructor's account, and its clone of the repository. Students must not be able to read it.
TEACHER = os.environ.get("HUB_TEACHER", "teacher")
COURSE = Path(os.environ.get("HUB_COURSE", HERE.parent.parent))
#: The environment of the students' servers: `ranks`, and nothing of `autograder`, which holds answers.
STUDENTS_BIN = Path(os.environ.get("HUB_STUDENTS_BIN", Path(sys.executable).parent))
TEACHERS_BIN = Path(os.environ.get("HUB_TEACHERS_BIN", COURSE / ".venv" / "bin"))
#: This port is what browsers open; the hub and its proxy talk to each other on the two after it.
PORT = int(os.environ.get("HUB_PORT", "8000"))

c.JupyterHub.bind_url = f"http://127.0.0.1:{PORT}"
c.JupyterHub.hub_port = PORT + 1
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PORT + 2}"

STATE = FOLDER / "hub"  # holds secrets
STATE.mkdir(mode=0o700, exist_ok=True)
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{STATE / 'hub.sqlite'}"

# One name per line in students.txt. Nobody else may log in.
students = set((FOLDER / "students.txt").read_text(encoding="utf-8").split())
c.Authenticator.allowed_users = students | {TEACHER}
if TRIAL:
    c.JupyterHub.authenticator_class = "dummy"
    c.JupyterHub.spawner_class = "simple"
    c.SimpleLocalProcessSpawner.home_dir_template = str(FOLDER / "homes" / "{username}")
    if os.getuid() == 0:
        c.Spawner.args = ["--allow-root"]
else:
    c.JupyterHub.authenticator_class = "pam"
    c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"

c.Spawner.default_url = "/lab"
c.Spawner.http_timeout = c.Spawner.start_timeout = 120  # many servers start at once when a lecture begins


def settings_of(name):
    """What a person's server is told: which programs, which settings of Jupyter and nbgrader, which exchange."""
    teaches = name == TEACHER
    folders = [HERE / "everyone"] if teaches else [HERE / "students", HERE / "everyone"]
    programs = TEACHERS_BIN if teaches else STUDENTS_BIN
    told = {
        "PATH": os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"]),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(map(str, folders)),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "NBGRADER_EXCHANGE": str(FOLDER / "exchange"),
    }
    # nbgrader takes a student's name from the account. In a trial, all have the same.
    if TRIAL and not teaches:
        told["NBGRADER_STUDENT"] = name
    return told


def before_start(spawner):
    """The instructor's server starts in the course's folder, with its environment; a student's starts at home."""
    name = spawner.user.name
    spawner.environment = settings_of(name)
    if name == TEACHER:
        spawner.cmd = ["env", f"--chdir={COURSE}", str(TEACHERS_BIN / "jupyterhub-singleuser")]
        spawner.notebook_dir = str(COURSE)
    else:
        spawner.cmd = [str(STUDENTS_BIN / "jupyterhub-singleuser")]


c.Spawner.pre_spawn_hook = before_start

# A name becomes a folder's name, and nbgrader separates the parts of such names by "+".
c.Authenticator.username_pattern = r"[a-z][a-z0-9_-]*"
assert all(re.fullmatch(c.Authenticator.username_pattern, name) for name in students), "a name in students.txt"
