"""Word and character n-grams with linear models, of scikit-learn."""

import time

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC


def machine(kind, X, y, X_test, seed):
    """A linear support vector machine."""
    return _fitted(LinearSVC(random_state=0), X, y, X_test)


def logistic(kind, X, y, X_test, seed):
    """Logistic regression; C=10, since weights of tf-idf are small."""
    return _fitted(LogisticRegression(C=10, max_iter=300), X, y, X_test)


def _fitted(classifier, X, y, X_test):
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    pipeline = make_pipeline(make_union(words, characters), classifier)
    began = time.process_time()
    pipeline.fit(X, y)
    seconds = time.process_time() - began
    proba = pipeline.predict_proba(X_test) if hasattr(classifier, "predict_proba") else None
    return pipeline.predict(X_test), proba, seconds
