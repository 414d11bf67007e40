"""A conditional random field of sklearn-crfsuite, with the features that its tutorial has."""

import time

import sklearn_crfsuite


def field(kind, X, y, X_test, seed):
    """Each token with its neighbours, two to each side, and the form of its characters."""
    estimator = sklearn_crfsuite.CRF(c1=0.1, c2=0.1, max_iterations=100, all_possible_transitions=True)
    began = time.process_time()
    estimator.fit([_features(tokens) for tokens in X], y)
    seconds = time.process_time() - began
    return [list(tags) for tags in estimator.predict([_features(tokens) for tokens in X_test])], None, seconds


def _features(tokens):
    found = []
    for number, token in enumerate(tokens):
        own = {"bias": 1.0, "token": token, "end": token[-3:], "lower": token.lower(), "upper": token.isupper()}
        own |= {"digit": token.isdigit(), "title": token.istitle(), "word": token.isidentifier()}
        for offset in (-2, -1, 1, 2):
            place = number + offset
            own[f"{offset}"] = tokens[place] if 0 <= place < len(tokens) else "<end>"
        own["pair before"], own["pair behind"] = own["-1"] + " " + token, token + " " + own["1"]
        found.append(own)
    return found
