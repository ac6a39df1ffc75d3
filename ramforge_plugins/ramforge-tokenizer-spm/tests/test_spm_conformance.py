import pytest
import tiny_spm

from ramforge_core.testing import TokenizerTests
from ramforge_tokenizer_spm.tokenizer import SentencePieceTokenizer


class TestTinyVocabulary(TokenizerTests):
    @pytest.fixture(params=[True, False], ids=["prefix", "no-prefix"])
    def tokenizer(self, request):
        return SentencePieceTokenizer.from_metadata(
            tiny_spm.metadata(add_space_prefix=request.param, add_eos_token=True)
        )

    @pytest.fixture
    def lossless(self):
        return False  # U+2581 comes back as a blank

    def test_all_but_the_escape_comes_back(self, tokenizer):
        for text in ("hello hello", "  two", "中文 👩🏽‍🚀\n\0", " ", "a b"):
            assert tokenizer.detokenize(tokenizer.encode(text)) == text.encode()
        assert tokenizer.detokenize(tokenizer.encode("a▁b")) == b"a b"
