package dev.howdah.client;

import dev.howdah.v1.DependencyResult;
import java.util.Iterator;
import java.util.List;
import java.util.Spliterators;
import java.util.function.Consumer;
import java.util.function.IntFunction;

/** The results of a job's dependencies: those that came with the job, then pages from the broker. */
final class Results extends Spliterators.AbstractSpliterator<DependencyResult> {
    private final int count;
    private final IntFunction<List<DependencyResult>> pages;
    private Iterator<DependencyResult> page;
    private int returned;

    Results(List<DependencyResult> sent, int count, IntFunction<List<DependencyResult>> pages) {
        super(count, ORDERED | NONNULL);
        this.count = count;
        this.pages = pages;
        page = sent.iterator();
    }

    @Override
    public boolean tryAdvance(Consumer<? super DependencyResult> action) {
        if (!page.hasNext() && returned < count) {
            page = pages.apply(returned).iterator();
        }
        if (!page.hasNext()) {
            return false;
        }
        returned++;
        action.accept(page.next());
        return true;
    }
}
