"""The miniature study: which credit learns better, over many seeds of one small policy (docs/study.md)."""
