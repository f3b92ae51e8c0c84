/*
 * Singular values through LAPACK's dgesdd.
 */
#include "map/map.h"

#include <stdlib.h>

#ifdef CLI_LAPACK
/* Fortran: everything by address, matrices column by column. A row-major matrix is read as its
 * transpose, which has the same singular values. */
extern void dgesdd_(const char *job, const int *m, const int *n, double *a, const int *lda,
                    double *s, double *u, const int *ldu, double *vt, const int *ldvt, double *work,
                    const int *lwork, int *iwork, int *info);

bool svd_values(double *out, double *a, int64_t rows, int64_t columns, cli_error *error) {
    int m = (int)columns, n = (int)rows, least = m < n ? m : n, one = 1, ask = -1, info = 0;
    double size = 0, unused = 0;
    int *integers = malloc(8 * (size_t)least * sizeof *integers);
    if (!integers) return cli_fail(error, "out of memory");
    dgesdd_("N", &m, &n, a, &m, out, &unused, &one, &unused, &one, &size, &ask, integers, &info);
    int count = (int)size;
    double *work = info == 0 ? malloc((size_t)count * sizeof *work) : NULL;
    if (work)
        dgesdd_("N", &m, &n, a, &m, out, &unused, &one, &unused, &one, work, &count, integers,
                &info);
    bool good = work && info == 0;
    if (!good && info != 0)
        cli_fail(error, "LAPACK's dgesdd failed on a block of %lld x %lld (%d)", (long long)rows,
                 (long long)columns, info);
    else if (!good)
        cli_fail(error, "out of memory");
    free(work);
    free(integers);
    return good;
}
#else
bool svd_values(double *out, double *a, int64_t rows, int64_t columns, cli_error *error) {
    (void)out, (void)a, (void)rows, (void)columns;
    return cli_fail(error, "--rank needs LAPACK, and this program was built without it; build it "
                           "again where libopenblas-dev or liblapack-dev is installed");
}
#endif
