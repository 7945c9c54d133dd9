"""Data: from text to windows of tokens. Importing this package imports neither torch nor the
libraries of Hugging Face.
"""

from posbench.data.corpus import Corpus, fingerprint, prepare

__all__ = ["Corpus", "fingerprint", "prepare"]
