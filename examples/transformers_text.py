"""Text: a Hugging Face classifier, attacked at its word embeddings, because a word cannot be moved by a little.

A message to a surgery is an emergency, about medicine or about a bill. To take an emergency for anything else is what must
not happen. The model is a small DistilBERT made from scratch, so nothing is downloaded; from_pretrained works the same.

    pip install transformers && python examples/transformers_text.py
"""

import random
from itertools import product

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import csada

CLASSES = ("emergency", "medicine", "bill")
WHO = ("my mother", "my son", "i", "my neighbour", "a patient", "the driver", "my wife", "grandfather")
SAYS = {
    "emergency": ("took too many tablets", "cannot breathe today", "has pain after the pills", "fainted in the chair"),
    "medicine": ("took the pills today", "cannot find the tablets", "has no more pills", "needs tablets for pain"),
    "bill": ("paid too much today", "cannot pay for the tablets", "has too many bills", "lost the invoice"),
}
WHEN = ("", "please", "since this morning", "and it is the second time", "what should we do")
LENGTH = 16


def messages():
    """[N, LENGTH] word numbers, 0 where the message has ended; [N] classes; how many numbers there are."""
    texts = [(f"{a} {b} {c}".split(), y) for y in CLASSES for a, b, c in product(WHO, SAYS[y], WHEN)]
    random.Random(0).shuffle(texts)
    texts = [text for i, text in enumerate(texts) if text[1] != "emergency" or i % 3 == 0]  # they are rare
    numbers = {word: i for i, word in enumerate(sorted({word for words, _ in texts for word in words}), 1)}
    tokens = [[numbers[word] for word in words] + [0] * (LENGTH - len(words)) for words, _ in texts]
    return torch.tensor(tokens), torch.tensor([CLASSES.index(y) for _, y in texts]), len(numbers) + 1


class FromEmbeddings(nn.Module):
    """The classifier from its embeddings on. Words that are all zeros are padding: masked, they have no gradient, so an
    attack leaves them zeros, and the embeddings alone tell what to mask, whichever samples a method picks."""

    def __init__(self, classifier):
        super().__init__()
        self.classifier = classifier

    def forward(self, embedded):
        return self.classifier(inputs_embeds=embedded, attention_mask=(embedded != 0).any(-1).long()).logits


def main(epochs=15, fine_tuning=5, samples=60):
    torch.manual_seed(0)
    tokens, y, words = messages()
    small = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "max_position_embeddings": LENGTH}
    config = DistilBertConfig(vocab_size=words, num_labels=len(CLASSES), initializer_range=0.1, **small)
    classifier = DistilBertForSequenceClassification(config)
    costs = csada.CostMatrix.from_pairs(CLASSES, {("emergency", "medicine"): 10, ("emergency", "bill"): 10}, default=1)

    # an ordinary training, of the embeddings too
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=2e-3)
    for _ in range(epochs):
        classifier.train()
        for batch in torch.randperm(samples).split(16):
            optimizer.zero_grad()
            mask = (tokens[batch] != 0).long()
            F.cross_entropy(classifier(tokens[batch], attention_mask=mask).logits, y[batch]).backward()
            optimizer.step()

    # from here on the embeddings are the data, and stay as they are
    with torch.no_grad():
        x = classifier.get_input_embeddings()(tokens) * (tokens != 0)[..., None]
    model, half = FromEmbeddings(classifier).eval(), (samples + len(y)) // 2
    train, validation, test = (x[:samples], y[:samples]), (x[samples:half], y[samples:half]), (x[half:], y[half:])
    descent = {"epochs": fine_tuning, "optimizer": "adam", "lr": 5e-4, "batch_size": 32}
    # a word's embedding has a length of about 0.6
    attack = {"step": "l2", "step_size": 0.03, "norm": "l2", "epsilon": 0.15}
    better = csada.fit(model, train, "csada", costs, **descent, **attack).model
    rule = csada.MinimumExpectedCost.within_budget(*csada.predict_logits(model, validation), costs)
    rows = {
        "before": csada.evaluate(model, test, costs),
        "before + rule": csada.evaluate(model, test, costs, rule),
        "after": csada.evaluate(better, test, costs),
    }
    # what one attack does, on the classifier itself: which emergencies are nearly read as a matter of medicine?
    calls = (y == 0).nonzero()[:20, 0]
    mask = (tokens[calls] != 0).long()
    result = csada.attack(
        classifier, x[calls], y[calls], 1, steps=10, **attack,
        forward=lambda points: classifier(inputs_embeds=points, attention_mask=mask).logits,
    )  # fmt: skip
    print({outcome.name: int((result.outcome == outcome).sum()) for outcome in csada.Outcome})
    for name, e in rows.items():
        print(f"{name:13} accuracy {100 * e.accuracy:.2f} %, cost per 100 {100 * e.mean_cost:.2f}")
    return rows


if __name__ == "__main__":
    main()
