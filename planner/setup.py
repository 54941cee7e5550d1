"""`pip install ./planner`: what the package holds besides its own modules comes from the repository around it."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
#: File of the repository → where it is installed. `machines` is installed with it.
BESIDES = {
    **{f"machines/{name}.py": f"machines/{name}.py" for name in ("__init__", "cluster", "model")},
    "benchmarks/published_runs.json": "planner/published_runs.json",
}


class Build(build_py):
    """Copies these files too, and not this one."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        return [module for module in super().find_package_modules(package, package_dir) if module[1] != "setup"]

    def run(self) -> None:
        super().run()
        for source, target in BESIDES.items():
            self.mkpath(str(Path(self.build_lib, target).parent))
            self.copy_file(str(HERE.parent / source), str(Path(self.build_lib, target)))


setup(cmdclass={"build_py": Build})
