"""Many patterns as one trie: one walk finds what of a service they match.

A pattern is a tuple of words in which `*` stands for one word and `#` for any number of words, none
included. Patterns that begin alike share nodes, so that a walk along a service's words is in a few
nodes at a time, however many patterns there are (`NODES_MAX`).

No I/O, no engine.
"""

from collections.abc import Iterable, Iterator
from typing import Any

ONE, ANY = "*", "#"
WILDCARDS = frozenset((ONE, ANY))
#: Nodes that two words lead to at most, where no pattern has two `#` in a row: each is a way of
#: reading each word by itself, by `*` or by `#`, with a `#` before, between and behind or not.
NODES_MAX = 42
#: Marks, among a node's children, that a pattern ends here: no word is empty.
_END = ""

_Node = dict[str, Any]


class PatternTrie:
    """A set of patterns, for matching."""

    def __init__(self, patterns: Iterable[tuple[str, ...]]) -> None:
        self._root: _Node = {}
        for pattern in patterns:
            node = self._root
            for word in pattern:
                found = node.get(word)
                if found is None:
                    found = node[word] = {}
                node = found
            node[_END] = node

    def named(self, service: tuple[str, ...]) -> frozenset[str] | None:
        """Return the words for symbols that match behind the service's words; None where all do."""
        nodes = self._reached(service)
        if any(_END in node or (ONE in node and _ends(node[ONE])) for node, _ in nodes):
            return None
        return frozenset(word for node, _ in nodes for word, child in node.items() if _ends(child))

    def _reached(self, words: tuple[str, ...]) -> list[tuple[_Node, bool]]:
        """Return the nodes at which these words may have led, each with whether it repeats (is a
        `#`)."""
        nodes = list(_with_any([(self._root, False)]))
        for word in words:
            after: dict[int, tuple[_Node, bool]] = {}
            for node, repeats in nodes:
                if repeats:
                    after[id(node)] = (node, True)
                for each in (word, ONE):
                    if each in node:
                        after[id(node[each])] = (node[each], False)
            nodes = list({id(each[0]): each for each in _with_any(after.values())}.values())
        return nodes


def _with_any(nodes: Iterable[tuple[_Node, bool]]) -> Iterator[tuple[_Node, bool]]:
    """Yield these nodes, and those that a `#` for no word at all leads to."""
    for node, repeats in nodes:
        yield node, repeats
        while ANY in node:
            node = node[ANY]
            yield node, True


def _ends(node: _Node) -> bool:
    """Return whether a pattern ends here, or by a `#` for no word at all."""
    return _END in node or (ANY in node and _ends(node[ANY]))
