"""Aligns the tokens of a piece of text with those of a file that it may have moved to."""

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

# Scores of an equal token, of another word in its place, and of a token without a counterpart.
EQUAL, RENAMED, MISSING = 1.0, 0.6, -0.2
NEVER = -9.0
TOKEN = re.compile(r"\w+|[^\w\s]")


class Text(str):
    """A text and its tokens: words, and single characters that are neither words nor spaces."""

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The start and end of each token."""
        return [match.span() for match in TOKEN.finditer(self)]

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens in their order."""
        return TOKEN.findall(self)

    @cached_property
    def trigrams(self) -> set[tuple[str, ...]]:
        """All sequences of three adjacent tokens."""
        return set(zip(self.tokens, self.tokens[1:], self.tokens[2:], strict=False))


def align(
    tokens: Sequence[str], file: Text, weights: Sequence[float]
) -> tuple[dict[int, int], float, float]:
    """Find the best place of `tokens` in a file.

    Return pairs of token indexes, the score (at most the sum of the weights), and the lead over
    the second best place.
    """
    # Smith-Waterman alignment, one token per row, vectorized over the tokens of the file.
    is_word = np.array([token[0].isidentifier() for token in file.tokens], dtype=bool)
    hashes = np.array([hash(token) for token in file.tokens])
    columns = np.arange(len(hashes) + 1)
    scores = np.zeros((len(tokens) + 1, len(hashes) + 1))
    matches = np.empty((len(tokens), len(hashes)))
    for row, (token, weight) in enumerate(zip(tokens, weights, strict=True)):
        unequal = np.where(is_word, RENAMED, NEVER) if token[0].isidentifier() else NEVER
        matches[row] = weight * np.where(hashes == hash(token), EQUAL, unequal)
        best = scores[row] + weight * MISSING
        best[1:] = np.maximum(best[1:], scores[row, :-1] + matches[row])
        # A token of the file can be skipped too: the best column to the left, minus the distance.
        skipped = np.maximum.accumulate(best - weight * MISSING * columns)
        scores[row + 1] = skipped + weight * MISSING * columns
    end = int(scores[-1].argmax())
    elsewhere = np.abs(columns - end) > len(tokens) // 2
    lead = scores[-1, end] - scores[-1, elsewhere].max(initial=0.0)
    return _trace(scores, matches, weights, end), float(scores[-1, end]), float(lead)


def _trace(
    scores: np.ndarray, matches: np.ndarray, weights: Sequence[float], column: int
) -> dict[int, int]:
    pairs = {}
    row = len(weights)
    while row and column:
        reached = scores[row, column]
        if np.isclose(reached, scores[row - 1, column - 1] + matches[row - 1, column - 1]):
            row, column = row - 1, column - 1
            pairs[row] = column
        elif np.isclose(reached, scores[row - 1, column] + weights[row - 1] * MISSING):
            row -= 1
        else:
            column -= 1
    return pairs
