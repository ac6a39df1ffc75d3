import pytest
import tiny_bpe

from ramforge_core.testing import TokenizerTests
from ramforge_tokenizer_bpe.tokenizer import BytePairTokenizer


class TestTinyVocabulary(TokenizerTests):
    @pytest.fixture(params=["gpt-2", "llama-bpe", "deepseek-llm"])
    def tokenizer(self, request):
        return BytePairTokenizer.from_metadata(tiny_bpe.metadata(request.param))


class TestVocabularyWithoutSomeBytes(TokenizerTests):
    """As falcon's and starcoder's: some bytes have no token, and are lost."""

    @pytest.fixture
    def lossless(self):
        return False

    @pytest.fixture
    def tokenizer(self):
        values = tiny_bpe.values()
        values["tokenizer.ggml.tokens"] = [
            f"[gone {i}]" if i in (0, 0xE4, 0xF0) else token
            for i, token in enumerate(values["tokenizer.ggml.tokens"])
        ]
        return BytePairTokenizer.from_metadata(tiny_bpe.Metadata.from_dict(values))

    def test_their_bytes_are_left_out(self, tokenizer):
        assert tokenizer.detokenize(tokenizer.encode("a\0中b")) == b"a" + "中".encode()[1:] + b"b"
