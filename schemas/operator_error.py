"""What the operator must mend, whatever part finds it: the command tells it in one line."""


class OperatorError(Exception):
    """The base of each part's own; its text says what is wrong and what to do."""
