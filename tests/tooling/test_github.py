"""The forms for issues are what GitHub takes, as far as its documentation says."""

import yaml

from checking import equal, true
from mounting import REPOSITORY

FORMS = REPOSITORY / ".github/ISSUE_TEMPLATE"


def test_forms():
    forms = sorted(FORMS.iterdir())
    equal([form.name for form in forms], ["bug.yml", "feature.yml"], "the forms")
    for file in forms:
        form = yaml.safe_load(file.read_text())
        true(form["name"] and form["description"] and form["labels"], f"{file.name} has a head")
        ids = [field["id"] for field in form["body"]]
        equal(len(ids), len(set(ids)), f"ids in {file.name}")
        for field in form["body"]:
            true(field["type"] in ("textarea", "input") and field["attributes"]["label"], f"{field} in {file.name}")


def test_a_bug_has_what_shows_it():
    text = (FORMS / "bug.yml").read_text()
    for wanted in ("ckptfs doctor", "ckptfs status --json", "log"):
        true(wanted in text, f"the form asks for {wanted}")
