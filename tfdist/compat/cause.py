"""What an error of TensorFlow's says, in one line: how its text is laid out, no public name tells."""

_AROUND = ("Graph execution error", "Detected at ", "<stack traces", "[[")


def cause_of(text: str) -> str:
    """Return the line that says what went wrong: where a graph has failed, it stands below the place in the code.

    Args:
        text: of the error; the lines of a place are indented.

    Example:
        >>> cause_of("Graph execution error:\\n\\nDetected at node f\\n  File f.py\\nNaN found.\\n\\t [[{{node f}}]]")
        'NaN found'
        >>> cause_of("")
        'nothing'
    """
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    said = next((line for line in lines if not line.startswith(_AROUND)), "nothing")
    return said.split(" [[")[0].split(" [Op:")[0].strip().rstrip(".")
