"""Pickles that every later version must load.

``files/`` holds one folder for each version of safepickle and of Python that has written some. ``write.py`` writes
them, ``kinds.py`` says what must come back, ``test_golden.py`` loads them all. What a release has written is never
changed and never deleted.
"""
