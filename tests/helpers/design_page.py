"""What `tests/test_design_page.py` shares with other tests."""

import ast
from pathlib import Path


def names_in(path: Path) -> set[str]:
    """Names that a module defines at the top, and those of its classes as Class.name."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
                found |= {
                    f"{node.name}.{member.target.id}"
                    for member in node.body
                    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
                }
    return found
