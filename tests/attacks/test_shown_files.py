"""What submissions see of the system: never the course, the exchange or the settings that lie next to programs."""

import os
import sys
from pathlib import Path

import pytest

from autograder.grade.course import Course
from autograder.grade.jail import outside, shown_files
from tests.helpers.jailed import run

LIST = """
import os, sys
for folder in ("/usr", "/usr/local", "/usr/share", "/etc", sys.prefix, sys.base_prefix):
    print(sorted(os.listdir(folder) if os.path.isdir(folder) else []))
"""


@pytest.mark.jail
def test_of_folders_with_programs_only_the_parts_are_there(jailed):
    said, raised = run(jailed, LIST)
    usr, local, share, etc, environment, python = (set(eval(line)) for line in said.splitlines())
    assert raised is None and "lib" in environment and "bin" in usr
    assert usr <= {*shown_files.PARTS, "share", "local"} and local <= {*shown_files.PARTS}
    assert share <= {os.path.basename(place) for place in shown_files.DATA} and etc <= set(shown_files.SETTINGS)
    assert environment <= {*shown_files.PARTS, "local", "share"} and python <= {*shown_files.PARTS, "local", "share"}


def test_an_environment_in_the_courses_folder_does_not_show_the_course(tmp_path, monkeypatch):
    for name in ("bin", "lib", "solutions", "submitted", "feedback"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "gradebook.db").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    places, links = shown_files.shown()
    of_course = {place for place in places if place.startswith(str(tmp_path))}
    assert of_course == {str(tmp_path / "bin"), str(tmp_path / "lib")} and ("lib", str(tmp_path / "lib64")) in links
    shown_files.refuse(tmp_path / "solutions")


def test_a_course_that_the_jail_would_show_is_not_graded(tmp_path, monkeypatch):
    course = tmp_path / "lib" / "course"
    (course / "submitted").mkdir(parents=True)
    (course / "solutions").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ValueError, match="move it elsewhere"):
        Course(course).grade()
    link = tmp_path / "link"
    link.symlink_to(course)
    with pytest.raises(ValueError, match="move it elsewhere"):
        shown_files.refuse(link)
    monkeypatch.setattr(outside.notebook, "SOLUTIONS", Path(course / "solutions"))
    with pytest.raises(outside.JailError, match="move it elsewhere"):
        outside.Jail()
